"""The cost of quantized KV in a real language model: perplexity, divergence and recall of each format."""
