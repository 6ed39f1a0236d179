"""Who owns which time: the traced steps cut into cells of one phase and one layer, which add up."""
