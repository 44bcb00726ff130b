# Run on the first (master) node, and with --node_rank=1 on the worker.
export NCCL_IB_DISABLE=1
torchrun --nproc_per_node=8 --nnodes=2 --node_rank=0 --master_addr=10.1.2.3 --master_port=1234 \
  train.py config/train_gpt2.py --batch_size=8 --compile=False
