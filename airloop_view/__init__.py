"""The viewer: an index over runs, a server on localhost, and a page. Nothing here writes into what is viewed."""
