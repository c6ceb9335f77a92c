"""Sending a proposal to a forge: what is asked there first, what is pushed, and the draft that is opened or updated."""
