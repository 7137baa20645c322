#include "cli/quantize_flags.h"

#include <CLI/CLI.hpp>

#include "base/bytes.h"
#include "quant/encode.h"

namespace lk {
namespace {

// What each format may be written as, the default first.
std::string formats_and_recipes() {
  std::string text =
      "Formats, and for each the tools whose layout and rounding it may have, the "
      "default first:\n";
  std::string_view format;
  for (const Target* target : all_targets()) {
    text += fmt::format("  {:<12} {:<19} {}\n", target->format == format ? "" : target->format,
                        target->recipe, target->rounding);
    format = target->format;
  }
  text +=
      "The gpt-oss and transformers layouts of mxfp4 quantize experts alone; all others every "
      "linear "
      "but\nembedding, router, head and those of one row for each head or token. Linears in the "
      "format already keep their codes. Codes and "
      "scales are\nthose of the tool for a model loaded in float32 (docs/quantize.md).\n"
      "Exit code: 0, 2 if nothing was written (the sentence says why), 130 if it was interrupted.";
  return text;
}

}  // namespace

void add_quantize_flags(CLI::App& app, QuantizeCommandOptions& options) {
  app.add_option("IN", options.in,
                 "Folder of the model, in any format that can be run, or its hub id")
      ->required();
  app.add_option("OUT", options.out, "Folder to write, absent or empty")->required();
  app.add_option("--revision", options.revision,
                 "Branch, tag or commit of a hub id; default: main");
  app.add_option("--format", options.format, "The format of the weights, see below")
      ->required()
      ->type_name("FORMAT");
  app.add_option("--recipe", options.recipe, "The tool whose layout and rounding to use, see below")
      ->type_name("TOOL");
  app.add_option("--keep", options.keep,
                 "Leave linears unquantized whose path holds this (self_attn, layers.0, "
                 "'*.mlp.experts'; may be repeated)")
      ->type_name("PATTERN")
      ->allow_extra_args(false)
      ->take_all();
  // As a flag it takes no word that stands behind it, which may be IN.
  const std::string report =
      "Print the relative error of each linear; as --report=TEXTFILE also the perplexity on that "
      "text before and after";
  app.add_flag("--report", report)->each([&options](const std::string& value) {
    options.report = value == "true" ? "" : value;
  });
  app.add_option_function<std::string>(
         "TEXTFILE",
         [](const std::string& word) {
           throw CLI::ParseError("there is a word beside IN and OUT: " + word.substr(0, 200) +
                                     "; a text to measure is written --report=TEXTFILE",
                                 CLI::ExitCodes::ExtrasError);
         })
      ->group("");
  app.add_option_function<std::string>(
         "--shard-size",
         [&options](const std::string& text) {
           const auto bytes = parse_bytes(text);
           if (!bytes || *bytes == 0) {
             throw CLI::ValidationError("--shard-size", "no size over 0: " + text);
           }
           options.shard_bytes = *bytes;
         },
         "Largest file of weights; default: 5GiB")
      ->type_name("SIZE");
  app.add_option("--threads", options.threads, "CPU threads; default: all")
      ->check(CLI::Range(0, 4096));
  app.footer(formats_and_recipes());
}

}  // namespace lk
