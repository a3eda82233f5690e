"""The server's part: the rounds of the method that the run config names."""

from fedlearn.engines.flower import server_app

app = server_app()
