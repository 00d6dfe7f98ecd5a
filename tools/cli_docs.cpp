#include "tools/cli_docs.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

namespace strata {

namespace {

// Text for roff: backslashes and hyphens escaped, no line that starts like a request.
std::string Roff(const std::string& text) {
  std::string out;
  bool line_start = true;
  for (char c : text) {
    if (line_start && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
    line_start = c == '\n';
  }
  return out;
}

// "-m, --model DIR"
std::string Names(const CLI::Option& option) {
  std::string names;
  for (const std::string& name : option.get_snames()) names += (names.empty() ? "-" : ", -") + name;
  for (const std::string& name : option.get_lnames())
    names += (names.empty() ? "--" : ", --") + name;
  if (option.get_items_expected_max() > 0) names += " " + option.get_type_name();
  return names;
}

void OptionsOf(const CLI::App& app, std::string& page) {
  for (const CLI::Option* option : app.get_options()) {
    page +=
        fmt::format(".TP\n\\fB{}\\fR\n{}\n", Roff(Names(*option)), Roff(option->get_description()));
  }
}

std::vector<const CLI::App*> Subcommands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// All spellings of an app's flags, with spaces between.
std::string Flags(const CLI::App& app) {
  std::string flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_snames()) flags += " -" + name;
    for (const std::string& name : option->get_lnames()) flags += " --" + name;
  }
  return flags.empty() ? flags : flags.substr(1);
}

// The flags whose value is of the given type, as a case pattern.
std::string Taking(const CLI::App& app, const std::string& type) {
  std::string pattern;
  const auto add = [&](const std::string& flag) {
    if (("|" + pattern + "|").find("|" + flag + "|") == std::string::npos)
      pattern += (pattern.empty() ? "" : "|") + flag;
  };
  std::vector<const CLI::App*> apps = Subcommands(app);
  apps.push_back(&app);
  for (const CLI::App* each : apps) {
    for (const CLI::Option* option : each->get_options()) {
      if (option->get_type_name().rfind(type, 0) != 0) continue;
      for (const std::string& name : option->get_snames()) add("-" + name);
      for (const std::string& name : option->get_lnames()) add("--" + name);
    }
  }
  return pattern;
}

}  // namespace

std::string ManPage(const CLI::App& app, const std::string& environment_and_notes) {
  std::string page = ".TH STRATA 1\n.SH NAME\nstrata \\- " + Roff(app.get_description()) + "\n";
  page += ".SH SYNOPSIS\n\\fBstrata\\fR [OPTIONS]\n";
  for (const CLI::App* sub : Subcommands(app))
    page += fmt::format(".br\n\\fBstrata {}\\fR [OPTIONS]\n", Roff(sub->get_name()));
  page += ".SH OPTIONS\n";
  OptionsOf(app, page);
  page += ".SH COMMANDS\n";
  for (const CLI::App* sub : Subcommands(app)) {
    page += fmt::format(".SS {}\n{}\n", Roff(sub->get_name()), Roff(sub->get_description()));
    OptionsOf(*sub, page);
  }
  return page + ".SH NOTES\n.nf\n" + Roff(environment_and_notes) + ".fi\n";
}

std::string BashCompletion(const CLI::App& app) {
  std::string names, cases;
  for (const CLI::App* sub : Subcommands(app)) {
    names += (names.empty() ? "" : " ") + sub->get_name();
    cases += fmt::format("    {}) flags=\"{}\" ;;\n", sub->get_name(), Flags(*sub));
  }
  std::string script = "# bash completion for strata\n_strata() {\n";
  script += "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} flags\n";
  script += "  case $before in\n";
  script += fmt::format("    {}) mapfile -t COMPREPLY < <(compgen -d -- \"$current\"); return ;;\n",
                        Taking(app, "DIR"));
  script += fmt::format("    {}) mapfile -t COMPREPLY < <(compgen -f -- \"$current\"); return ;;\n",
                        Taking(app, "FILE"));
  script += "  esac\n";
  script += fmt::format("  case ${{COMP_WORDS[1]}} in\n{}    *) flags=\"{} {}\" ;;\n  esac\n",
                        cases, names, Flags(app));
  script += "  mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$current\")\n}\n";
  return script + "complete -F _strata strata\n";
}

}  // namespace strata
