"""Encoders made of live objects: SentenceTransformer, transformers model and tokenizer, timm, open_clip, a function.

Objects are recognised by what they offer; none of their packages is imported here.
"""
