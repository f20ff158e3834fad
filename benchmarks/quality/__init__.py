"""What quantized KV costs a real language model: perplexity, divergence and recall of each format."""
