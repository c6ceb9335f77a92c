"""The stock path of a decode step on a GPU: one rank's layers from the best pieces that a user of the card has today."""
