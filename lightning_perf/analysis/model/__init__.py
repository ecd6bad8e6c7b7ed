"""The cost of the model's parts: operators, modules, optimizers, memory."""
