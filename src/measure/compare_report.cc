// SPDX-License-Identifier: Apache-2.0
// The report of a comparison for people: Markdown, and one HTML file with SVG plots.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "measure/compare.h"

namespace fluvial::measure {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kColours[] = {"#1f5fa8", "#c2571a"};  // A, B: apart for colour-blind readers, too

std::string Number(const Json& value, int digits = 3) {
  if (!value.is_number()) return "-";
  char text[64];
  const double v = value.get<double>();
  if (std::abs(v) >= 1000 && std::abs(v) < 1e9) {  // no exponents
    std::snprintf(text, sizeof(text), "%.0f", v);
  } else {
    std::snprintf(text, sizeof(text), "%.*g", digits + 1, v);
  }
  return text;
}

std::string Mean(const Json& list) {
  if (!list.is_array() || list.empty()) return "-";
  double sum = 0;
  for (const Json& v : list) sum += v.get<double>();
  return Number(sum / static_cast<double>(list.size()));
}

std::string IntervalText(const Json& interval) {
  return interval.is_array() ? Number(interval[0]) + " to " + Number(interval[1]) : "-";
}

std::string Escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

/// A cell of a Markdown table: without line breaks and bars.
std::string Cell(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
    if (c == '|') c = '/';
  }
  return text;
}

using Row = std::vector<std::string>;

struct Table {
  std::string title;
  Row head;
  std::vector<Row> rows;
};

std::vector<Table> Tables(const Json& r) {
  std::vector<Table> tables;
  Table times{"B against A", {"metric", "A", "B", "B / A", "interval", "pairs", "B is"}, {}};
  for (const auto& [key, m] : r["metrics"].items()) {
    times.rows.push_back({m["title"].get<std::string>(), Mean(m["a"]), Mean(m["b"]), Number(m["ratio_b_over_a"]),
                          IntervalText(m["interval"]), std::to_string(m["pairs"].get<int64_t>()),
                          m["verdict"].get<std::string>()});
  }
  tables.push_back(std::move(times));
  const Json& acc = r["accuracy"];
  if (acc.is_object()) {
    Table answers{
        "Answers: " + acc["verdict"].get<std::string>(), {"", "accuracy", "95 % interval", "invalid", "failed"}, {}};
    for (const char* side : {"a", "b"}) {
      if (!acc.contains(side)) continue;
      const Json& s = acc[side];
      answers.rows.push_back({side[0] == 'a' ? "A" : "B", Number(s["accuracy"]), IntervalText(s["accuracy_interval"]),
                              Number(s["invalid_rate"]), Number(s["failed"])});
    }
    tables.push_back(std::move(answers));
    if (acc.contains("mcnemar_p")) {
      tables.push_back(
          {"Items",
           {"items", "only A right", "only B right", "same text", "McNemar p", "differ at most"},
           {{Number(acc["items"]), Number(acc["only_a_right"]), Number(acc["only_b_right"]),
             Number(acc["identical_texts"]), Number(acc["mcnemar_p"]), Number(acc["disagreement_upper"])}}});
    }
  }
  Table failures{"Failures", {"launch", "side", "kind", "count", "what"}, {}};
  for (const Json& f : r["failures"]) {
    failures.rows.push_back({Number(f["launch"]), f["side"].get<std::string>(), f["kind"].get<std::string>(),
                             Number(f["count"]), f["error"].get<std::string>()});
  }
  if (failures.rows.empty()) failures.rows.push_back({"-", "-", "none", "0", ""});
  tables.push_back(std::move(failures));
  Table launches{
      "Launches", {"launch", "side", "start s", "done", "failed", "TTFT ms", "TPOT ms", "ITL ms", "tok/s"}, {}};
  for (const Json& l : r["launches"]) {
    Row row = {Number(l["index"]), l["side"].get<std::string>(), Number(l["start_seconds"])};
    if (l.contains("result")) {
      const Json& s = l["result"];
      for (const char* key :
           {"completed", "failed", "median_ttft_ms", "median_tpot_ms", "mean_itl_ms", "output_throughput"}) {
        row.push_back(Number(s[key]));
      }
    } else {
      row.insert(row.end(), {"0", l["error_kind"].get<std::string>(), "-", "-", "-", "-"});
    }
    launches.rows.push_back(std::move(row));
  }
  tables.push_back(std::move(launches));
  return tables;
}

/// "dataset random, num_prompts 16, ..."
std::string WorkloadText(const Json& workload) {
  std::string out;
  for (const auto& [key, value] : workload.items()) {
    if (value.is_null()) continue;
    out += (out.empty() ? "" : ", ") + key + " " + (value.is_string() ? value.get<std::string>() : value.dump());
  }
  return out;
}

std::string Format(const char* form, double a, double b, double c = 0) {
  char text[256];
  std::snprintf(text, sizeof(text), form, a, b, c);
  return text;
}

/// One dot per launch in the order they ran, from zero up, and a line at each side's mean.
std::string Plot(const std::string& title, const Json& launches, const char* key) {
  constexpr double kWidth = 420, kHeight = 200, kLeft = 56, kBottom = 28, kTop = 30;
  std::vector<std::pair<int, double>> points;  // side or -1, value
  double top = 0;
  for (const Json& l : launches) {
    const bool ok = l.contains("result") && l["error"].get<std::string>().empty() && l["result"]["completed"] > 0;
    points.emplace_back(ok ? l["side"] == "B" : -1, ok ? l["result"][key].get<double>() : 0.0);
    top = std::max(top, points.back().second);
  }
  if (top <= 0) top = 1;
  const auto x = [&](size_t i) {
    return kLeft + (kWidth - kLeft - 16) * (static_cast<double>(i) + 0.5) / static_cast<double>(points.size());
  };
  const auto y = [&](double v) { return kHeight - kBottom - (kHeight - kBottom - kTop) * v / (top * 1.1); };
  std::string svg = Format("<svg viewBox=\"0 0 %g %g\" width=\"%g\" role=\"img\">", kWidth, kHeight, kWidth);
  svg += "<title>" + title + "</title><text x=\"8\" y=\"18\" class=\"t\">" + title + "</text>";
  for (const double v : {0.0, top / 2, top}) {
    svg += Format("<line x1=\"56\" x2=\"%g\" y1=\"%g\" y2=\"%g\" stroke=\"#ddd\"/>", kWidth - 16, y(v), y(v));
    svg += Format("<text x=\"50\" y=\"%g\" text-anchor=\"end\">", y(v) + 4, 0) + Number(v, 2) + "</text>";
  }
  double sum[2] = {0, 0};
  int count[2] = {0, 0};
  for (size_t i = 0; i < points.size(); ++i) {
    const auto [side, value] = points[i];
    svg += Format("<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">", x(i), kHeight - 10) +
           launches[i]["side"].get<std::string>() + "</text>";
    if (side < 0) {
      svg += Format("<text x=\"%g\" y=\"%g\" text-anchor=\"middle\" fill=\"#b00\">failed</text>", x(i), y(top / 4));
      continue;
    }
    sum[side] += value;
    ++count[side];
    svg += Format("<circle cx=\"%g\" cy=\"%g\" r=\"5\" fill=\"", x(i), y(value)) + kColours[side] + "\"><title>" +
           Number(value) + "</title></circle>";
  }
  for (int side = 0; side < 2; ++side) {
    if (count[side] == 0) continue;
    const double at = y(sum[side] / count[side]);
    svg += Format("<line x1=\"56\" x2=\"%g\" y1=\"%g\" y2=\"%g\" stroke-dasharray=\"5 4\" stroke=\"", kWidth - 16, at,
                  at) +
           kColours[side] + "\"/>";
  }
  return svg + "</svg>";
}

/// Share of requests (up) that took at most so long (right), per side, all launches together.
std::string Distribution(const std::string& title, const Json& launches, const char* key) {
  constexpr double kWidth = 420, kHeight = 200;
  std::vector<double> values[2];
  for (const Json& l : launches) {
    if (!l.contains("result")) continue;
    const Json& s = l["result"];
    for (size_t i = 0; i < s[key].size(); ++i) {
      if (s["errors"][i].get<std::string>().empty()) values[l["side"] == "B"].push_back(s[key][i].get<double>() * 1000);
    }
  }
  double most = 0;
  for (auto& v : values) {
    std::sort(v.begin(), v.end());
    if (!v.empty()) most = std::max(most, v.back());
  }
  if (most <= 0) most = 1;
  std::string svg = Format("<svg viewBox=\"0 0 %g %g\" width=\"%g\" role=\"img\">", kWidth, kHeight, kWidth);
  svg += "<title>" + title + "</title><text x=\"8\" y=\"18\" class=\"t\">" + title + "</text>";
  const auto x = [&](double v) { return 56 + (kWidth - 72) * v / most; };
  const auto y = [&](double share) { return 172 - 142 * share; };
  for (const double share : {0.0, 0.5, 1.0}) {
    svg += Format("<line x1=\"56\" x2=\"404\" y1=\"%g\" y2=\"%g\" stroke=\"#ddd\"/>", y(share), y(share));
    svg += Format("<text x=\"50\" y=\"%g\" text-anchor=\"end\">%g %%</text>", y(share) + 4, share * 100);
    svg += Format("<text x=\"%g\" y=\"190\" text-anchor=\"middle\">", x(most * share), 0) + Number(most * share, 2) +
           "</text>";
  }
  for (int side = 0; side < 2; ++side) {
    if (values[side].empty()) continue;
    std::string line = Format("%g,%g", x(0), y(0));
    const auto n = static_cast<double>(values[side].size());
    for (size_t i = 0; i < values[side].size(); ++i) {
      line += Format(" %g,%g", x(values[side][i]), y(static_cast<double>(i) / n));
      line += Format(" %g,%g", x(values[side][i]), y(static_cast<double>(i + 1) / n));
    }
    svg += "<polyline fill=\"none\" stroke-width=\"2\" stroke=\"" + std::string(kColours[side]) + "\" points=\"" +
           line + "\"/>";
  }
  return svg + "</svg>";
}

constexpr const char* kMeaning =
    "A verdict on a time needs the whole interval of B / A on one side of 1; launches are its unit, paired as "
    "neighbours of the order A B B A. \"Not established\" is not \"equal\": the difference, if any, is within the "
    "interval. Failed requests are left out of the times and listed below.";

}  // namespace

std::string CompareMarkdown(const Json& r) {
  std::string out = "# Comparison\n\nA: `" + r["a"].get<std::string>() + "`\n\nB: `" + r["b"].get<std::string>() +
                    "`\n\nFluvial " + r["fluvial_version"].get<std::string>() +
                    "; workload: " + WorkloadText(r["workload"]) + "\n";
  for (const Table& t : Tables(r)) {
    out += "\n## " + t.title + "\n\n|";
    for (const std::string& h : t.head) out += " " + h + " |";
    out += "\n|";
    for (size_t i = 0; i < t.head.size(); ++i) out += " --- |";
    for (const Row& row : t.rows) {
      out += "\n|";
      for (const std::string& cell : row) out += " " + Cell(cell) + " |";
    }
    out += "\n";
  }
  return out + "\n" + kMeaning + "\n";
}

std::string CompareHtml(const Json& r) {
  std::string out =
      "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width\"><title>Comparison</title><style>body{font:15px/1.5 system-ui,sans-serif;"
      "max-width:920px;margin:2em auto;padding:0 1em;color:#222}table{border-collapse:collapse;margin:.5em 0}"
      "td,th{border:1px solid #ccc;padding:.25em .6em;text-align:left;overflow-wrap:break-word}th{background:#f3f3f3}"
      "svg{margin:.3em .6em .3em 0;max-width:100%;font-size:11px;fill:#444}svg .t{font-size:13px;font-weight:600}"
      "code{background:#f3f3f3;padding:.1em .3em;overflow-wrap:anywhere}</style><h1>Comparison</h1>";
  for (int side = 0; side < 2; ++side) {
    out += std::string("<p><b style=\"color:") + kColours[side] + "\">" + (side == 0 ? "A" : "B") + "</b> <code>" +
           Escape(r[side == 0 ? "a" : "b"].get<std::string>()) + "</code></p>";
  }
  out += "<p>Fluvial " + Escape(r["fluvial_version"].get<std::string>()) +
         "; workload: " + Escape(WorkloadText(r["workload"])) + "</p>";
  const std::vector<Table> tables = Tables(r);
  for (size_t i = 0; i < tables.size(); ++i) {
    const Table& t = tables[i];
    out += "<h2>" + Escape(t.title) + "</h2><table><tr>";
    for (const std::string& h : t.head) out += "<th>" + Escape(h) + "</th>";
    out += "</tr>";
    for (const Row& row : t.rows) {
      out += "<tr>";
      for (const std::string& cell : row) out += "<td>" + Escape(cell) + "</td>";
      out += "</tr>";
    }
    out += "</table>";
    if (i != 0) continue;
    out += "<p>" + Escape(kMeaning) +
           "</p><h2>Plots</h2><p>Each dot is a launch, in the order they ran; dashes are "
           "the means of the sides. Steps: the share of requests that took at most so long.</p>";
    const Json& launches = r["launches"];
    out += Plot("TTFT, median of a launch (ms)", launches, "median_ttft_ms");
    out += Plot("TPOT, median of a launch (ms)", launches, "median_tpot_ms");
    out += Plot("ITL, mean of a launch (ms)", launches, "mean_itl_ms");
    out += Plot("Output tokens per second", launches, "output_throughput");
    out += Distribution("TTFT of all requests (ms)", launches, "ttfts");
    out += Distribution("Whole answers of all requests (ms)", launches, "latencies");
  }
  return out + "</html>\n";
}

}  // namespace fluvial::measure
