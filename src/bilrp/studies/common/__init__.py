"""What studies share: folders of data, the ladder of layers, the report."""
