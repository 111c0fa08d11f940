"""How to reach things: files, locks, processes, Docker, archives; knows not what they are for."""
