"""Which rules say something about networks with batch norm? MobileNetV2 and EfficientNet-Lite0 on photographs."""
