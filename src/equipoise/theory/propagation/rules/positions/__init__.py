"""Operations that choose, repeat, average or interpolate positions."""
