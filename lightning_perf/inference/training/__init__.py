"""Training that transforms need: distillation and fine-tuning."""
