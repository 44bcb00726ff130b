"""The models that come with the training module: `toy`, `mnist` and `gpt`.

Each module owns one model, its data and its loss behind `build(context, **args) -> Workload`. It does not know how,
where or by how many processes the model is trained.
"""
