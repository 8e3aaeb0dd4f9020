#!/usr/bin/env bash
# GRPO on the counter with verl 0.9, on one machine with one GPU. README.md, beside this file, explains it.
# More options may follow: bash examples/verl/grpo_counter.sh trainer.total_epochs=1
set -euo pipefail
mkdir -p rollouts

python -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    algorithm.use_kl_in_reward=False \
    data.train_files=$PWD/data/counter-train.parquet \
    data.val_files=$PWD/data/counter-test.parquet \
    data.train_batch_size=64 \
    data.max_prompt_length=1024 \
    data.max_response_length=2048 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-1.5B-Instruct \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.5 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 \
    actor_rollout_ref.rollout.calculate_log_probs=True \
    actor_rollout_ref.rollout.multi_turn.enable=True \
    actor_rollout_ref.rollout.multi_turn.format=hermes \
    actor_rollout_ref.rollout.agent.agent_loop_config_path=$PWD/examples/verl/agent_loop.yaml \
    actor_rollout_ref.rollout.agent.num_workers=4 \
    trainer.n_gpus_per_node=1 \
    trainer.nnodes=1 \
    trainer.total_epochs=5 \
    trainer.test_freq=5 \
    trainer.save_freq=-1 \
    trainer.logger=console \
    trainer.project_name=stateroom \
    trainer.experiment_name=counter-grpo \
    "$@"
