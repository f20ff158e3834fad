"""The bundled demo model: the dialogues it learns from, its tokenizer, its training and its evaluation."""
