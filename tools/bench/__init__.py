"""Speed on a GPU against PyTorch's flash backend. Needs only torch; rich and matplotlib dress it up."""
