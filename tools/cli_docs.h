// The manual page and the shell completion, from the same table as --help.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace strata {

// roff for man(1). `environment_and_notes` is the text behind the options in --help.
std::string ManPage(const CLI::App& app, const std::string& environment_and_notes);
// A script for bash-completion: subcommands, flags, and folders or files where a flag takes one.
std::string BashCompletion(const CLI::App& app);

}  // namespace strata
