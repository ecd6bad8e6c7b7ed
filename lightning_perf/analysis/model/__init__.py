"""What the model's parts cost: operators, modules, optimizers, memory."""
