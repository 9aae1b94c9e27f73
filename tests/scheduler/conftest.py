"""The helpers of this folder can be imported by the tests below it: pytest puts the folder of a conftest on the path."""
