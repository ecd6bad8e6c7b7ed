"""Operations counted, and the latency that a device's peak rates allow."""
