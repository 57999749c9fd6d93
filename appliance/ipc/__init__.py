"""Communication between processes: framed Unix sockets, channels of rings with their handshake, and
proxies of other processes."""
