// The harmony format of gpt-oss: messages of several channels, told apart by special tokens.
#pragma once

#include <memory>

#include "text/output_parser.h"

namespace lk {

// Errors: kUnsupported if the tokenizer lacks one of the format's tokens.
//
// A message goes by its header, and messages of the same kind are joined by "\n":
//  - a recipient functions.NAME, or the name of an offered tool: a tool call. The recipient may
//    stand in the role part or behind the channel. Empty arguments are told as {}.
//  - any other recipient (browser.search, python: tools that nobody offered) is left aside, and the
//    text goes by its channel;
//  - channel analysis: reasoning; everything else: content.
// Text outside of messages is content, so output without any marker is content, whole. A header
// that never ends is left out if it reads like one, else it is content.
Result<std::unique_ptr<OutputParser>> make_harmony_parser(const OutputParserOptions& options,
                                                          const Tokenizer& tokenizer);

}  // namespace lk
