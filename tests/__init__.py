"""The tests are a package of the checkout (never installed), so that imports between them say where they lead."""
