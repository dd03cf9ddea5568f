"""Means of the pooled embeddings of 64 photographs of Pascal VOC 2007, measured with benchmarks/random_pairs.py."""

from bilrp.findings.reference_likeness import PooledPhotographMean

# By the hash of the weights.
POOLED_PHOTOGRAPH_MEANS = {
    "c938bfd98fc4df15": PooledPhotographMean(  # VGG-16, layer 31
        "j0RzfoPCoGx2ZHeTiktuZYtCg0iigUpOdn9ZjbR1T2Y80TO8fHJgmYVWRGpke6tHMl5xlWRoY0bBaGI7YIGpq2LEZqrGbRmOmj5F"
        "SI9xi2nFVP1kMY87IP93k3d3Skc+NFxfNUVUPWxAc1Gbo3g9XmlRXXNsi5+uSlJGOTwvvnWFUWNbs1Rv3z8iunzLgJlJ8bSEkVls"
        "PVB4OZtDqD5xZlFLgj5iS3dsXYRcfWJ0L2RWnYNyU1V3MUFKSz51xFlLRSlmnldtcGplZpuX0ZGQemqAYEGbNCtaWjxkRE4zZT58"
        "k1xty0BrKzx/wHhKbXlCY0NQSGV9X220nlB1Xi9mWw==",
        0.573,
    ),
    "e76d44c581ecd5fe": PooledPhotographMean(  # MobileNetV2
        "1s+0uq7CpqO6vMbi35rWkdK9qqHOqc2i6b3AmLe8sKazpNrEsqjVm76+yamgpcrL2rG9ucX6sL3DxM28qLnS3+myvrDQw6rBwJzx"
        "p87RxsTDz8q107fRyNOf7cC9ud7Bv6vKtrbJ2dG4wd28v7aimry7or28xcSkxrnX2d7CvrKpxMO9/8S3qN7Ts9uxurC2jbmv3r7P"
        "3dSunbSu2KbMu9Gl2u/VrMWwvK/JybXOrrTEutWtuMy5t7q5o66xysbAusyo5o7Ixr2sr7u41MCayK+2qdS+spuuqLuyu76fu7zE"
        "w7mvqM7FvaSi9rTCvMG8oa3IkLew07jBo8O9tcTQzQ==",
        0.9,
    ),
    "f37680e4ac58d067": PooledPhotographMean(  # EfficientNet-Lite0
        "wJ6dnquvdpOdqZivnZWWkpy6oo+Xt7K73LDBi3qouqLkhoL/lZjBwbG4so6WkpO/m6OPhZKH1paiy8XCqa3Do8TGnN+lq6Sqe5ev"
        "oqqsnZ+me8OrqLagiYLCn5ufpoKztZWMoqekfbKj9KSW/rq/jq6qmNGivZGZo2mViMSkeY+pjpGVm7idmaCan6Oznai2qpG9nLye"
        "k82PkN2Wl86u26SrsJdqnrS7u6OdtYmKjJacopibeMKnlJGq6aeJirSRvruWm5+hc9K0erCEn5ei3tCnoZTTva62naDSr86onq6B"
        "zsfvpL/PrHiVn62ue7HZrqWur5+Ds4mntKO5mLG8nA==",
        0.716,
    ),
    "f578c122ee43e28b": PooledPhotographMean(  # ResNet-50 (transformers)
        "cmRtWnVjd11/Um1XkoFZ/3+/XFmRZGJidmBvgFBYU1eGgH5udlValHBvTWxXaW9+YHJ2ZWGRZE2EbX6IbXdtf32dgG5ablhhV4hl"
        "YWNxWlqFkYdoZW5dYGBOYGd3hYNbhmdjW39YZVViZm9hbnxTgZR3bGZlc4J8dWNjd1xiaY9VUV5biGeTVFNibIeVYViQYHhagWly"
        "TWSFWl5Yfm5QcH5ohW1mb1Z2b4qBcmtmYnFwanp+bHRoaHJbY4BQY3xoZlpbbm5pWHBufV5VYlhgaGlHXGR5bHt3clN3Z2ZfZGJl"
        "hXlnj1tuWmB0cndXRIdvTXJYeXluhFdMklNLZGxedA==",
        0.839,
    ),
}
