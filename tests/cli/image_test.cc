// SPDX-License-Identifier: Apache-2.0
// fluvial run --image and --video on a small random checkpoint, and every wrong picture.
#include <nlohmann/json.hpp>

#include "cli_testkit.h"

namespace fluvial::tools {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class ImageTest : public CliTest {
 protected:
  const std::string model_ = Source("tests/golden/vision/qwen3_5");
  // The checkpoint has no tokenizer, which run says in a warning of its own.
  const std::string run_ = "run " + model_ + " --log-level error";
  const std::string files_ = Source("tests/golden/images/files/");
  // Ids of that checkpoint: image 316, video 315, start 317, end 318. A picture of 29 x 23 becomes 2 x 3 features.
  const std::string ids_ = "5,6,317,316,316,316,316,316,316,318,7";

  Json RunJson(const std::string& options) {
    const Ran r = Run("run " + model_ + " --json --max-tokens 4 --temperature 0 --ignore-eos " + options);
    EXPECT_EQ(r.status, 0) << options << "\n" << r.err;
    return Json::parse(r.out, nullptr, false);
  }
};

TEST_F(ImageTest, PicturesChangeTheAnswer) {
  const Json with = RunJson("--prompt-logits --prompt-ids " + ids_ + " --image " + files_ + "rgb.png");
  EXPECT_EQ(with["token_ids"].size(), 4u);
  EXPECT_EQ(with["prompt_token_ids"].size(), 11u);
  EXPECT_EQ(with["backends"]["vision_attention"], "cpu");
  const Json same = RunJson("--prompt-logits --prompt-ids " + ids_ + " --image " + files_ + "rgba.png");
  EXPECT_EQ(with["prompt_logits"], same["prompt_logits"]);  // alpha is dropped
  const Json other = RunJson("--prompt-logits --prompt-ids " + ids_ + " --image " + files_ + "l.png");
  EXPECT_NE(with["prompt_logits"], other["prompt_logits"]);
  const Json without = RunJson("--prompt-logits --prompt-ids " + ids_);
  EXPECT_NE(with["prompt_logits"], without["prompt_logits"]);
}

TEST_F(ImageTest, OrientationIsAppliedUnlessAskedNotTo) {
  const std::string turned = "--prompt-logits --prompt-ids " + ids_ + " --image " + files_ + "turned.png";
  const Json plain = RunJson("--prompt-logits --prompt-ids " + ids_ + " --image " + files_ + "rgb.png");
  EXPECT_EQ(RunJson(turned + " --ignore-exif")["prompt_logits"], plain["prompt_logits"]);
  EXPECT_NE(RunJson(turned)["prompt_logits"], plain["prompt_logits"]);
}

TEST_F(ImageTest, VideosAreFoldersOfFrames) {
  for (int i = 0; i < 4; ++i) {
    fs::copy_file(files_ + (i < 2 ? "rgb.png" : "l.png"), folder() / ("frame" + std::to_string(i) + ".png"));
  }
  // Two groups of 1 x 2 features.
  const Json j =
      RunJson("--prompt-ids 5,317,315,315,318,317,315,315,318,7 --video " + folder().string() + " --video-fps 2");
  EXPECT_EQ(j["token_ids"].size(), 4u);
  ExpectError(run_ + " --prompt-ids 5 --video /nowhere", 2, "there is no such file or folder");
}

TEST_F(ImageTest, TheEncoderHasABackendOfItsOwn) {
  const std::string options = "--prompt-ids " + ids_ + " --image " + files_ + "rgb.png --mm-encoder-attn-backend ";
  EXPECT_EQ(RunJson(options + "reference")["backends"]["vision_attention"], "reference");
  ExpectError(run_ + " " + options + "none", 2, "there is no backend 'none'");
  const Ran r = Run("explain " + model_);
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find("vision_attention, an image of 4096 patches"), std::string::npos) << r.out;
}

TEST_F(ImageTest, WrongPicturesAreNamed) {
  const std::string run = run_ + " --prompt-ids " + ids_ + " --image ";
  ExpectError(run + "/nowhere.png", 2, "/nowhere.png: the file cannot be read");
  ExpectError(run + Source("README.md").string(), 2, "not a PNG, JPEG, WebP, BMP or GIF picture");
  ExpectError(run + files_ + "rgb.png --max-image-pixels 100", 2, "29 x 23, more than 100 pixels");
  ExpectError(run + "https://example.com/a.png", 2, "nothing is fetched from the network");
  ExpectError(run + files_ + "rgb.png --image " + files_ + "rgb.png", 2, "2 were given");
  ExpectError(run_ + " --prompt-ids 5,316,7 --image " + files_ + "rgb.png", 2, "needs 6 in a row and has 1");
  ExpectError(run_ + " --messages x.json --image " + files_ + "rgb.png", 2, "name the files in the messages");
  ExpectError("run " + Source("models/demo-random-gdn").string() + " --prompt-ids 5 --image " + files_ + "rgb.png", 3,
              "preprocessor_config.json");
}

}  // namespace
}  // namespace fluvial::tools
