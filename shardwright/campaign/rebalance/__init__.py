"""Two splits of one layout asked the same, one after the other, and the verdict that follows."""
