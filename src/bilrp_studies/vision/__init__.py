"""Vision study: composites for networks with batch norm, on MobileNetV2 and EfficientNet-Lite0."""
