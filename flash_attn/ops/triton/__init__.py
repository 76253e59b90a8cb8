"""Operations that use Triton where it is installed, and PyTorch where not."""
