"""The import paths and names of QReward 0.1.7."""
