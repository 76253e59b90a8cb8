"""Operations that go with attention."""
