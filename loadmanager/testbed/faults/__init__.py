"""The whole service in one process and in virtual time, with every fault there is."""
