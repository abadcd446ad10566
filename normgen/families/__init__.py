"""Which norms a model has, by its ``model_type``: data, and how a spec is made of it.

``kinds.yaml`` says what each kind of norm class computes, the other files which norms a
model has and which config keys give their sizes.  What no config holds, and what a
config may leave out, is data too; nothing is guessed.
"""
