"""What crosses between processes: framed Unix sockets, channels of rings with their handshake, and the proxies that stand for other processes."""
