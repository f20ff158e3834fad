"""The page at /ui/: `files.py` serves it, and `static/` is the page, which browsers take as it is: nothing is built.

    static/index.html, *.css     what is loaded first
    static/*.js                  the frame: routes, the key, requests, streams of events
    static/views/                one module for each view, and what only they use
    static/vendor/               libraries of others: VENDORED.json has their versions, licences and checksums

Its modules are typed in JSDoc, and checked by tests/gateway/ui. What it shows it asks the gateway for, as any client.
"""
