# SPDX-License-Identifier: Apache-2.0
"""Worker processes that fill slots of shared memory, and a thread that moves them to the device. Never makes training wait:
when nothing new is there, a recent batch is used once more."""

import mmap
import multiprocessing
import os
import queue
import random
import threading
import time

import numpy as np
import torch

import batches


def _serve(family, directory, tokens, seed, slots, layout, free, ready, progress, stage, nice):
    os.nice(nice)
    torch.set_num_threads(1)
    enc, rng = batches.Encoder(family, directory), random.Random(seed)
    while True:
        slot = free.get()
        segments, kinds, arrays = batches.build(family, enc, tokens, rng, progress.value, stage)
        for name, (offset, shape, dtype) in layout.items():
            np.frombuffer(slots[slot], dtype=dtype, count=int(np.prod(shape)), offset=offset).reshape(shape)[:] = arrays[name]
        ready.put((slot, segments, kinds))


class Loader:

    def __init__(self, family, directory, tokens, seed, workers, device, stage):
        self.device, self.reused, self.fresh = device, 0, 0
        context = multiprocessing.get_context("fork")
        _, _, arrays = batches.build(family, batches.Encoder(family, directory), tokens, random.Random(seed), 0.0, stage)
        self.layout, offset = {}, 0
        for name, x in arrays.items():
            self.layout[name] = (offset, x.shape, x.dtype)
            offset += (x.nbytes + 4095) // 4096 * 4096
        count = 2 * workers + 2
        self.slots = [mmap.mmap(-1, offset) for _ in range(count)]
        self.free, self.ready, self.progress = context.Queue(), context.Queue(), context.Value("d", 0.0)
        for i in range(count):
            self.free.put(i)
        self.workers = [context.Process(target=_serve, daemon=True, args=(
            family, directory, tokens, seed + 1000 * (i + 1), self.slots, self.layout, self.free, self.ready, self.progress, stage, 5)) for i in range(workers)]
        for w in self.workers:
            w.start()
        self.queue, self.recent, self.rng = queue.Queue(maxsize=4), [], random.Random(seed)
        self.stopped = False

    def start(self):
        """After the forks: the device may be used from here on."""
        self.thread = threading.Thread(target=self._move, daemon=True)
        self.thread.start()

    def _move(self):
        gpu = self.device != "cpu"
        if gpu:
            torch.cuda.set_device(self.device)
            stream, main = torch.cuda.Stream(), torch.cuda.default_stream()
        while not self.stopped:
            slot, segments, kinds = self.ready.get()
            tensors = {}
            for name, (offset, shape, dtype) in self.layout.items():
                x = torch.from_numpy(np.frombuffer(self.slots[slot], dtype=dtype, count=int(np.prod(shape)), offset=offset).reshape(shape))
                if gpu:
                    with torch.cuda.stream(stream):
                        tensors[name] = x.to(self.device)
                    tensors[name].record_stream(main)
                else:
                    tensors[name] = x.clone()
            if gpu:
                stream.synchronize()
            self.free.put(slot)
            self.queue.put((segments, kinds, tensors))

    def next(self, patience=0.005):
        try:
            batch = self.queue.get(timeout=None if not self.recent else patience)
            self.fresh += 1
            self.recent.append(batch)
            if len(self.recent) > 48:
                self.recent.pop(self.rng.randrange(len(self.recent) - 1))
        except queue.Empty:
            batch = self.rng.choice(self.recent)
            self.reused += 1
        return batch

    def stop(self):
        self.stopped = True
        for w in self.workers:
            w.terminate()
        time.sleep(0.1)
