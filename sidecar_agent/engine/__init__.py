"""Reading engines: their metric pages, and what is made of them."""
