# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/images: picture files of every kind, and what Pillow and transformers make of them.

    python3 tools/golden/make_images.py --out tests/golden/images

  files/*            the pictures
  expected.txt       one line per fact, checked by src/vision/*_test.cc:
    decode FILE WIDTH HEIGHT HASH            bytes of Image.open(f).convert("RGB")
    upright FILE WIDTH HEIGHT HASH           the same after ImageOps.exif_transpose
    resize W H SEED W2 H2 HASH               Pillow's bicubic resize of a formula picture (vision_images.py)
    resize_torch W H SEED W2 H2 HASH         torch's, of uint8 with antialias
    image_size H W FACTOR MIN MAX H2 W2      smart_resize of the image processor; 0 0 = refused
    video_size N H W FACTOR MIN MAX H2 W2    smart_resize of the Qwen3-VL video processor; 0 0 = refused
    sample3 TOTAL FPS INDEX...               frames that Qwen3-VL's sample_frames picks (FPS 0 = unknown)
    sample2 TOTAL FPS INDEX...               Qwen2.5-VL's
    expand3 FPS H W INDEX... | TEXT          the prompt text of a video with these frames and patches, with <v> for its pad
HASH is FNV-1a, 64 bits.
"""

import argparse
import os
import random
import types

import numpy as np
import torch
from PIL import Image, ImageOps

from vision_images import picture

W, H = 29, 23


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def rgb():
    return Image.fromarray(picture(W, H, 1))


def alpha():
    y, x = np.mgrid[0:H, 0:W]
    return Image.fromarray(((x * 9 + y * 5) % 256).astype(np.uint8))


def with_alpha(image):
    image = image.copy()
    image.putalpha(alpha())
    return image


def exif(orientation):
    e = Image.Exif()
    e[0x0112] = orientation
    return e


def bmp_bytes(image, bits):
    """BMP with 16 or 32 bits and colour masks, which Pillow reads but does not write."""
    a = np.array(image.convert("RGB"))[::-1].astype(np.uint32)
    if bits == 16:
        v = ((a[..., 0] >> 3) << 11 | (a[..., 1] >> 2) << 5 | a[..., 2] >> 3).astype("<u2")
        row = v.tobytes() if v.shape[1] % 2 == 0 else np.pad(v, ((0, 0), (0, 1))).tobytes()
        masks = (0xF800, 0x7E0, 0x1F)
    else:
        row = (a[..., 0] << 16 | a[..., 1] << 8 | a[..., 2] | 0x55 << 24).astype("<u4").tobytes()
        masks = (0xFF0000, 0xFF00, 0xFF)
    info = np.array([40, image.width, image.height], "<u4").tobytes() + np.array([1, bits], "<u2").tobytes()
    info += np.array([3, len(row), 2835, 2835, 0, 0, *masks], "<u4").tobytes()
    return b"BM" + np.array([14 + len(info) + len(row), 0, 14 + len(info)], "<u4").tobytes() + info + row


def write_files(folder):
    os.makedirs(folder, exist_ok=True)
    path = lambda name: os.path.join(folder, name)
    base = rgb()
    grey = base.convert("L")
    deep = np.arange(W * H, dtype=np.uint16).reshape(H, W) * 97 % 1200
    base.save(path("rgb.png"))
    with_alpha(base).save(path("rgba.png"))
    grey.save(path("l.png"))
    with_alpha(grey).save(path("la.png"))
    base.convert("P", palette=Image.Palette.ADAPTIVE, colors=200).save(path("p.png"))
    base.convert("P", palette=Image.Palette.ADAPTIVE, colors=13).save(path("p4.png"), bits=4, transparency=3)
    base.convert("1").save(path("1.png"))
    base.quantize(4).convert("L").quantize(4).save(path("p2.png"), bits=2)
    Image.fromarray(deep).save(path("l16.png"))
    base.save(path("turned.png"), exif=exif(6))
    interlaced(base, path("interlaced.png"))
    rgb16(path("rgb16.png"))
    base.save(path("rgb.jpg"), quality=90)
    base.save(path("rgb444.jpg"), quality=75, subsampling=0)
    base.save(path("progressive.jpg"), quality=60, progressive=True)
    grey.save(path("l.jpg"), quality=80)
    base.convert("CMYK").save(path("cmyk.jpg"), quality=90)
    for o in range(1, 9):
        base.save(path(f"turned{o}.jpg"), quality=90, exif=exif(o))
    base.save(path("lossy.webp"), quality=70)
    base.save(path("lossless.webp"), lossless=True)
    with_alpha(base).save(path("rgba.webp"), lossless=True, exact=True)
    base.save(path("turned.webp"), lossless=True, exif=exif(8))
    base.save(path("animated.webp"), save_all=True, append_images=[ImageOps.invert(base)], lossless=True)
    base.save(path("rgb.bmp"))
    grey.save(path("l.bmp"))
    base.convert("1").save(path("1.bmp"))
    base.convert("P").save(path("p.bmp"))
    for bits in (16, 32):
        with open(path(f"masks{bits}.bmp"), "wb") as f:
            f.write(bmp_bytes(base, bits))
    base.save(path("rgb.gif"))
    grey.save(path("l.gif"))
    base.save(path("animated.gif"), save_all=True, append_images=[ImageOps.invert(base)])
    base.convert("P").save(path("transparent.gif"), transparency=5, interlace=1)


def interlaced(image, path):
    """Pillow does not write interlaced PNG: seven passes by hand."""
    import struct
    import zlib
    a = np.array(image)
    raw = b""
    for y0, x0, dy, dx in ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)):
        part = a[y0::dy, x0::dx]
        if part.size:
            raw += b"".join(b"\0" + row.tobytes() for row in part)
    write_png(path, image.width, image.height, 8, 2, 1, raw, struct, zlib)


def rgb16(path):
    import struct
    import zlib
    y, x = np.mgrid[0:H, 0:W]
    v = np.stack([(x * 2003 + y * 311) % 65536, (x * 77 + y * 4001) % 65536, (x * y * 131) % 65536], -1).astype(">u2")
    write_png(path, W, H, 16, 2, 0, b"".join(b"\0" + row.tobytes() for row in v), struct, zlib)


def write_png(path, width, height, depth, colour, interlace, raw, struct, zlib):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b""))


def decode_lines(folder):
    for name in sorted(os.listdir(folder)):
        image = Image.open(os.path.join(folder, name))
        turned = ImageOps.exif_transpose(image).convert("RGB")
        image = image.convert("RGB")
        yield f"decode {name} {image.width} {image.height} {fnv(image.tobytes())}"
        yield f"upright {name} {turned.width} {turned.height} {fnv(turned.tobytes())}"


def resize_lines():
    rng = random.Random(1)
    sizes = [(rng.randint(1, 150), rng.randint(1, 150), rng.randint(1, 150), rng.randint(1, 150)) for _ in range(40)]
    sizes += [(1, 1, 56, 56), (28, 28, 28, 28), (56, 700, 28, 532), (640, 37, 448, 28), (100, 80, 100, 56), (80, 100, 56, 100),
              (300, 200, 7, 5), (5, 7, 300, 200), (50, 40, 48, 32), (108, 28, 99, 17)]
    for seed, (w, h, w2, h2) in enumerate(sizes):
        out = Image.fromarray(picture(w, h, seed)).resize((w2, h2), Image.Resampling.BICUBIC)
        yield f"resize {w} {h} {seed} {w2} {h2} {fnv(out.tobytes())}"
        x = torch.from_numpy(picture(w, h, seed)).permute(2, 0, 1)[None]
        out = torch.nn.functional.interpolate(x, (h2, w2), mode="bicubic", antialias=True)[0].permute(1, 2, 0)
        yield f"resize_torch {w} {h} {seed} {w2} {h2} {fnv(out.contiguous().numpy().tobytes())}"


def size_lines():
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as image_size
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as video_size
    rng = random.Random(2)
    shapes = [(1, 1), (28, 28), (2800, 56), (37, 1000), (1, 200), (1, 201), (200, 1), (201, 1), (27, 332), (19, 500), (30, 305),
              (27, 257), (15420, 690), (484, 1024), (512, 1083), (12000, 12000), (42, 70), (14, 14), (13, 4000), (3, 599), (3, 601)]
    shapes += [(rng.randint(1, 3000), rng.randint(1, 3000)) for _ in range(60)]
    for h, w in shapes:
        for factor, low, high in ((28, 3136, 12845056), (28, 3136, 1003520), (32, 65536, 16777216), (16, 1024, 10240)):
            try:
                h2, w2 = image_size(h, w, factor, low, high)
            except ValueError:
                h2 = w2 = 0
            yield f"image_size {h} {w} {factor} {low} {high} {h2} {w2}"
    for h, w in shapes:
        for n, factor, low, high in ((2, 32, 4096, 25165824), (5, 32, 131072, 786432), (64, 32, 131072, 786432), (1, 32, 4096, 25165824)):
            try:
                h2, w2 = video_size(n, h, w, 2, factor, low, high)
            except (ValueError, ZeroDivisionError):
                h2 = w2 = 0
            yield f"video_size {n} {h} {w} {factor} {low} {high} {h2} {w2}"


def without_torchvision():
    """The sampling functions need no torchvision, but their modules import it."""
    import sys
    for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.v2", "torchvision.transforms.v2.functional"):
        sys.modules.setdefault(name, types.ModuleType(name))
        if "." in name:
            parent, child = name.rsplit(".", 1)
            setattr(sys.modules[parent], child, sys.modules[name])


def frame_lines():
    without_torchvision()
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
    limits = dict(min_frames=4, max_frames=768, fps=2, num_frames=None, temporal_patch_size=2)
    for total, fps in ((2, 24), (3, 24), (4, 30), (5, 3), (30, 30), (100, 25), (101, 29.97), (240, 23.976), (1000, 24), (12000, 24),
                       (90, 0), (7, 0.5)):
        meta = types.SimpleNamespace(total_num_frames=total, fps=fps or None)
        picked = Qwen3VLVideoProcessor.sample_frames(types.SimpleNamespace(**limits), meta)
        yield f"sample3 {total} {fps} " + " ".join(map(str, picked))
        if fps:
            picked = Qwen2VLVideoProcessor.sample_frames(types.SimpleNamespace(**limits), meta, fps=2).tolist()
            yield f"sample2 {total} {fps} " + " ".join(map(str, picked))
    for fps, indices in ((24, [0, 12, 24, 36]), (29.97, [0, 15, 30, 45, 60]), (3, [0, 1, 2, 3, 4]), (0, [0, 6])):
        h, w = 4, 6
        t = (len(indices) + 1) // 2
        meta = types.SimpleNamespace(fps=fps or None, frames_indices=list(indices))
        fake = types.SimpleNamespace(video_processor=types.SimpleNamespace(merge_size=2, temporal_patch_size=2), video_token="<v>",
                                     vision_start_token="<|vision_start|>", vision_end_token="<|vision_end|>")
        fake._calculate_timestamps = types.MethodType(Qwen3VLProcessor._calculate_timestamps, fake)
        text = Qwen3VLProcessor.replace_video_token(fake, {"video_grid_thw": np.array([[t, h, w]]), "video_metadata": [meta]}, 0)
        yield f"expand3 {fps} {h} {w} " + " ".join(map(str, indices)) + f" | {text}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    out = parser.parse_args().out
    files = os.path.join(out, "files")
    write_files(files)
    lines = [*decode_lines(files), *resize_lines(), *size_lines(), *frame_lines()]
    import PIL
    import transformers
    with open(os.path.join(out, "expected.txt"), "w") as f:
        f.write(f"# Pillow {PIL.__version__}, torch {torch.__version__}, transformers {transformers.__version__}; tools/golden/make_images.py\n")
        f.write("\n".join(lines) + "\n")
    print(len(lines), "lines", sum(os.path.getsize(os.path.join(files, n)) for n in os.listdir(files)), "bytes of pictures")


if __name__ == "__main__":
    main()
