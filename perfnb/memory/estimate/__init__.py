"""What a step would take, simulated on fake tensors."""
