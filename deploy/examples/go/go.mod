module example.com/agentmem-example

go 1.19
