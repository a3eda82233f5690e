from hypothesis import settings

# a shared machine stalls now and then; a slow example is no failure. The same examples every time.
settings.register_profile("book", deadline=None, derandomize=True)
settings.load_profile("book")
