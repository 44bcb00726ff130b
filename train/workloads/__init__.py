"""The models that come with the training module: `toy`, `mnist` and `gpt`.

Each module owns one model, its data and its loss behind `build(context, **args) -> Workload`, and
refuses to know how, where or by how many processes it is trained.
"""
