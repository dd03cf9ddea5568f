"""What studies share: what a study is, folders of data, the ladder of layers, the stereo pair, the report."""
