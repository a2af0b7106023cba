// Writes what Go's own text/template makes of the cases below, as JSON on stdout:
//
//	go run main.go > ../go_table.json
//
// A number of JSON without a fraction is an int here, any other a float64, as in Leaseway.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strings"
	"text/template"
)

type testCase struct {
	Name     string `json:"name"`
	Template string `json:"template"`
	Data     string `json:"data,omitempty"` // the person below where there is none
	Output   string `json:"output"`
	Failed   string `json:"failed,omitempty"` // "parse" or "run"
	Error    string `json:"error,omitempty"`
}

const person = `{"name": "Ann", "age": 41, "height": 1.75, "admin": true, "boss": null, "nick": "",
 "tags": ["x", "y", "z"], "none": [], "empty": {}, "address": {"city": "Bern", "zip": 3000,
 "geo": {"lat": 46.95, "lon": 7.45}}, "scores": {"b": 2, "a": 1, "C": 3, "ä": 4},
 "items": [{"id": 1, "name": "pen", "parts": ["cap", "ink"]}, {"id": 2, "name": "ink", "parts": []}],
 "mixed": [1, "two", 3.5, null, true, [4], {"k": "v"}], "zero": 0, "no": false, "nul": 0.0,
 "html": "<a href=\"x\">Tom & 'Jerry'</a>", "uni": "héllo ☃ 😀", "big": 12345678901, "fr": 0.5,
 "nested": [[1, 2], [3], []], "text": "  padded\t\n", "maps": [{"a": 1}, {"b": 2}, {}]}`

var cases = []testCase{
	// Fields.
	{Name: "text only", Template: "plain text"},
	{Name: "empty template", Template: ""},
	{Name: "a field", Template: "{{ .name }}"},
	{Name: "a field of a field", Template: "{{ .address.geo.lat }}"},
	{Name: "the dot", Template: "{{ . }}", Data: `"all"`},
	{Name: "the dollar", Template: "{{ $.name }}"},
	{Name: "the bare dollar", Template: "{{ $ }}", Data: `3`},
	{Name: "a missing field", Template: "[{{ .nothing }}]"},
	{Name: "a field of a missing field", Template: "[{{ .nothing.at.all }}]"},
	{Name: "a null", Template: "[{{ .boss }}]"},
	{Name: "a field of null", Template: "{{ .boss.name }}"},
	{Name: "a field of a null in parentheses", Template: "[{{ (.boss).name }}]"},
	{Name: "a field of a string", Template: "{{ .name.first }}"},
	{Name: "a field of a number", Template: "{{ .age.x }}"},
	{Name: "a field of a list", Template: "{{ .tags.x }}"},
	{Name: "a field of a boolean", Template: "{{ .admin.x }}"},
	{Name: "a field through parentheses", Template: "{{ (.address).city }}"},
	{Name: "a field of a function's value", Template: "{{ (index .items 0).name }}"},
	{Name: "a field of a nested index", Template: "{{ (index .items 1).parts }}"},
	{Name: "a root that is null", Template: "[{{ . }}{{ .x }}]", Data: `null`},
	{Name: "a root that is a list", Template: "{{ range . }}{{ .a }},{{ end }}", Data: `[{"a": 1}, {"a": 2}]`},
	{Name: "a key of letters beyond ASCII", Template: "{{ .scores.ä }}"},
	{Name: "a key with an underscore", Template: "{{ ._a1 }}", Data: `{"_a1": "u"}`},

	// Printing.
	{Name: "a string", Template: "{{ .uni }}"},
	{Name: "an int", Template: "{{ .big }}"},
	{Name: "a float", Template: "{{ .height }}"},
	{Name: "a float of zero fraction", Template: "{{ .nul }}"},
	{Name: "a boolean", Template: "{{ .admin }} {{ .no }}"},
	{Name: "a list", Template: "{{ .tags }}"},
	{Name: "an empty list", Template: "{{ .none }}"},
	{Name: "a mapping in order", Template: "{{ .scores }}"},
	{Name: "an empty mapping", Template: "{{ .empty }}"},
	{Name: "a nested mapping", Template: "{{ .address }}"},
	{Name: "a mixed list", Template: "{{ .mixed }}"},
	{Name: "a list of lists", Template: "{{ .nested }}"},
	{Name: "a list of mappings", Template: "{{ .items }}"},
	{Name: "large and small floats", Template: "{{ range . }}{{ . }} {{ end }}", Data: `[1e20, 1e21, 1e22, 123456.5, 1234567.5, 0.0001, 0.00001, 1.5e-7, 100000.5, 21.0, -0.5, 3.0e5, 1e5, 2.5e6]`},
	{Name: "floats with many digits", Template: "{{ range . }}{{ . }} {{ end }}", Data: `[0.1, 0.30000000000000004, 1.7976931348623157e308, 5e-324, 123456789.123]`},
	{Name: "negative numbers", Template: "{{ .a }} {{ .b }}", Data: `{"a": -5, "b": -2.25}`},

	// Literals.
	{Name: "a literal string", Template: `{{ "a\tb\"c\\ \u00e9 \x41 \101" }}`},
	{Name: "a raw string", Template: "{{ `a\\tb` }}"},
	{Name: "a raw string over lines", Template: "{{ `a\nb` }}"},
	{Name: "literal numbers", Template: "{{ 1 }} {{ -2 }} {{ +3 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 017 }} {{ 1_000 }}"},
	{Name: "literal floats", Template: "{{ 1.5 }} {{ .5 }} {{ 1e3 }} {{ 2E-2 }} {{ 1. }} {{ 0x1p4 }}"},
	{Name: "a literal character", Template: `{{ 'a' }} {{ '\n' }} {{ '☃' }} {{ '\'' }}`},
	{Name: "literal booleans", Template: "{{ true }} {{ false }}"},
	{Name: "a template marker in a string", Template: `{{ "}}{{" }}`},
	{Name: "jinja's markers are text", Template: `{% if x %} {# c #} {{ "{{ x }}" }} \ ' "`},
	{Name: "nil alone", Template: "{{ nil }}"},
	{Name: "nil as an argument", Template: "{{ print nil }}"},
	{Name: "a number with a letter", Template: "{{ 12ab }}"},
	{Name: "a number too large", Template: "{{ 99999999999999999999 }}"},

	// Trimming and comments.
	{Name: "trim left", Template: "a  \n {{- .name }} b"},
	{Name: "trim right", Template: "a {{ .name -}} \n\t b"},
	{Name: "trim both", Template: "a {{- .name -}} b"},
	{Name: "trim at the edges", Template: "  {{- .name -}}  "},
	{Name: "trim only markers", Template: " a {{- /* c */ -}} b "},
	{Name: "trim next to trim", Template: "a {{ 1 -}} {{- 2 }} b"},
	{Name: "a minus without a space is a number", Template: "{{-3}}"},
	{Name: "a trim marker before a minus", Template: "a {{- -3 -}} b"},
	{Name: "trim keeps text inside strings", Template: "{{- \" a \" -}} "},
	{Name: "a comment", Template: "a{{/* a comment */}}b"},
	{Name: "a comment over lines", Template: "a{{/* one\n two */}}b"},
	{Name: "a comment with a marker in it", Template: "a{{/* }} {{ */}}b"},
	{Name: "a comment with more behind it", Template: "a{{/* c */ .name}}b"},
	{Name: "a comment that does not end", Template: "a{{/* c }}b"},
	{Name: "a comment after a space", Template: "a{{ /* c */ }}b"},
	{Name: "an action over lines", Template: "{{ .name\n| printf\n\"%s!\" }}"},
	{Name: "trim around range", Template: "x\n{{- range .tags }}\n- {{ . }}\n{{- end }}\ny"},
	{Name: "trim around if", Template: "x {{- if .admin -}} yes {{- else -}} no {{- end -}} y"},
	{Name: "the seed's template", Template: "Name: {{ .data.name }}{{- range $i, $t := .data.tags }} {{ $i }}={{ $t }}{{- end }}", Data: `{"data": {"name": "Ann", "tags": ["a", "b"]}}`},

	// If.
	{Name: "if true", Template: "{{ if .admin }}yes{{ end }}"},
	{Name: "if else", Template: "{{ if .no }}yes{{ else }}no{{ end }}"},
	{Name: "else if", Template: "{{ if .no }}1{{ else if .zero }}2{{ else if .name }}3{{ else }}4{{ end }}"},
	{Name: "the truth of values", Template: "{{ range . }}{{ if . }}T{{ else }}F{{ end }}{{ end }}", Data: `[0, 1, -1, 0.0, 0.1, "", "a", [], [0], {}, {"a": 1}, null, true, false]`},
	{Name: "if of a missing field", Template: "{{ if .nothing.here }}T{{ else }}F{{ end }}"},
	{Name: "if with a variable", Template: "{{ if $x := .name }}{{ $x }}{{ end }}"},
	{Name: "if with a variable in else", Template: "{{ if $x := .nick }}{{ $x }}{{ else }}[{{ $x }}]{{ end }}"},
	{Name: "if nested", Template: "{{ if .admin }}{{ if .no }}a{{ else }}b{{ end }}{{ end }}c"},
	{Name: "if without a value", Template: "{{ if }}x{{ end }}"},
	{Name: "if without end", Template: "{{ if .a }}x"},
	{Name: "two elses", Template: "{{ if .a }}x{{ else }}y{{ else }}z{{ end }}"},
	{Name: "a stray end", Template: "x{{ end }}"},
	{Name: "a stray else", Template: "x{{ else }}"},

	// With.
	{Name: "with", Template: "{{ with .address }}{{ .city }} {{ $.name }}{{ end }}"},
	{Name: "with else", Template: "{{ with .nothing }}x{{ else }}{{ .name }}{{ end }}"},
	{Name: "with a variable", Template: "{{ with $a := .address }}{{ $a.city }}{{ .zip }}{{ end }}"},
	{Name: "else with", Template: "{{ with .boss }}x{{ else with .address }}{{ .city }}{{ else }}y{{ end }}"},
	{Name: "with nested", Template: "{{ with .address }}{{ with .geo }}{{ .lat }}{{ end }}{{ .city }}{{ end }}"},
	{Name: "with zero", Template: "{{ with .zero }}x{{ else }}none{{ end }}"},
	{Name: "with a constant", Template: "{{ with 5 }}{{ . }}{{ end }}"},
	{Name: "else if under with", Template: "{{ with .a }}x{{ else if .b }}y{{ end }}"},

	// Range.
	{Name: "range", Template: "{{ range .tags }}<{{ . }}>{{ end }}"},
	{Name: "range with element", Template: "{{ range $t := .tags }}{{ $t }}{{ . }}{{ end }}"},
	{Name: "range with index and element", Template: "{{ range $i, $t := .tags }}{{ $i }}{{ $t }} {{ end }}"},
	{Name: "range over a mapping", Template: "{{ range .scores }}{{ . }}{{ end }}"},
	{Name: "range over a mapping with keys", Template: "{{ range $k, $v := .scores }}{{ $k }}={{ $v }} {{ end }}"},
	{Name: "range over nothing", Template: "{{ range .none }}x{{ else }}empty{{ end }}"},
	{Name: "range over an empty mapping", Template: "{{ range .empty }}x{{ else }}empty{{ end }}"},
	{Name: "range over a missing field", Template: "{{ range .nothing }}x{{ else }}empty{{ end }}"},
	{Name: "range over null", Template: "{{ range .boss }}x{{ else }}empty{{ end }}"},
	{Name: "range over a string", Template: "{{ range .name }}x{{ end }}"},
	{Name: "range over a boolean", Template: "{{ range .admin }}x{{ end }}"},
	{Name: "range over a float", Template: "{{ range .height }}x{{ end }}"},
	{Name: "range over an int", Template: "{{ range 3 }}{{ . }}{{ end }}"},
	{Name: "range over an int with a variable", Template: "{{ range $i := 3 }}{{ $i }}{{ end }}"},
	{Name: "range over zero", Template: "{{ range 0 }}x{{ else }}none{{ end }}"},
	{Name: "range over a negative int", Template: "{{ range -2 }}x{{ else }}none{{ end }}"},
	{Name: "range over an int with two variables", Template: "{{ range $i, $e := 3 }}x{{ end }}"},
	{Name: "nested range with dollar", Template: "{{ range $i, $it := .items }}{{ $.name }}:{{ $it.name }}({{ range .parts }}{{ . }}{{ $i }},{{ else }}-{{ end }}) {{ end }}"},
	{Name: "range over lists of lists", Template: "{{ range .nested }}[{{ range . }}{{ . }}{{ end }}]{{ end }}"},
	{Name: "range element null", Template: "{{ range .mixed }}({{ . }}){{ end }}"},
	{Name: "a field of a null element", Template: "{{ range . }}{{ .a }}{{ end }}", Data: `[{"a": 1}, null]`},
	{Name: "break", Template: "{{ range .tags }}{{ if eq . \"y\" }}{{ break }}{{ end }}{{ . }}{{ end }}!"},
	{Name: "continue", Template: "{{ range .tags }}{{ if eq . \"y\" }}{{ continue }}{{ end }}{{ . }}{{ end }}!"},
	{Name: "break of the inner loop", Template: "{{ range .nested }}{{ range . }}{{ break }}{{ end }}o{{ end }}"},
	{Name: "break outside of range", Template: "{{ break }}"},
	{Name: "continue in with in range", Template: "{{ range .tags }}{{ with . }}{{ continue }}{{ end }}x{{ end }}y"},
	{Name: "break with else", Template: "{{ range .tags }}{{ break }}{{ else }}e{{ end }}"},
	{Name: "range with parentheses", Template: "{{ range (index .nested 0) }}{{ . }}{{ end }}"},
	{Name: "range over a slice", Template: "{{ range slice .tags 1 }}{{ . }}{{ end }}"},
	{Name: "range variables in else", Template: "{{ range $i, $e := .none }}x{{ else }}{{ $e }}{{ end }}"},
	{Name: "three range variables", Template: "{{ range $a, $b, $c := .tags }}x{{ end }}"},
	{Name: "range that assigns", Template: "{{ $x := 0 }}{{ range $x = .tags }}{{ $x }}{{ end }}{{ $x }}"},
	{Name: "range that assigns both", Template: "{{ $i := 9 }}{{ $x := 0 }}{{ range $i, $x = .tags }}{{ end }}{{ $i }}{{ $x }}"},

	// Variables.
	{Name: "a variable", Template: "{{ $x := .name }}{{ $x }}"},
	{Name: "a variable's field", Template: "{{ $a := .address }}{{ $a.geo.lon }}"},
	{Name: "a variable's missing field", Template: "{{ $a := .address }}[{{ $a.x.y }}]"},
	{Name: "a field of a null variable", Template: "{{ $b := .boss }}[{{ $b.name }}]"},
	{Name: "an assignment", Template: "{{ $x := 1 }}{{ $x = 2 }}{{ $x }}"},
	{Name: "an assignment in a loop", Template: "{{ $x := \"\" }}{{ range .tags }}{{ $x = print $x . }}{{ end }}{{ $x }}"},
	{Name: "an assignment in an if", Template: "{{ $x := 1 }}{{ if .admin }}{{ $x = 2 }}{{ end }}{{ $x }}"},
	{Name: "a shadow in an if", Template: "{{ $x := 1 }}{{ if .admin }}{{ $x := 2 }}{{ $x }}{{ end }}{{ $x }}"},
	{Name: "a shadow in a loop", Template: "{{ $x := 0 }}{{ range .tags }}{{ $x := . }}{{ $x }}{{ end }}{{ $x }}"},
	{Name: "a variable declared twice", Template: "{{ $x := 1 }}{{ $x := 2 }}{{ $x }}"},
	{Name: "a loop variable that is assigned", Template: "{{ range $i, $t := .tags }}{{ $t = \"q\" }}{{ $t }}{{ $i }}{{ end }}"},
	{Name: "a variable out of its scope", Template: "{{ if .admin }}{{ $x := 1 }}{{ end }}{{ $x }}"},
	{Name: "a variable never declared", Template: "{{ $x }}"},
	{Name: "a counter in a loop", Template: "{{ $n := 0 }}{{ range $i, $e := .mixed }}{{ if $e }}{{ $n = $i }}{{ end }}{{ end }}{{ $n }}"},
	{Name: "a variable in a nested loop", Template: "{{ $last := 0 }}{{ range .nested }}{{ range . }}{{ $last = . }}{{ end }}{{ end }}{{ $last }}"},
	{Name: "an argument for a variable", Template: "{{ $x := 1 }}{{ $x 2 }}"},

	// Pipelines and parentheses.
	{Name: "a pipeline", Template: "{{ .name | printf \"%s-%s\" \"a\" }}"},
	{Name: "a long pipeline", Template: "{{ .name | print \"x\" | len | printf \"%03d\" }}"},
	{Name: "parentheses", Template: "{{ printf \"%d\" (len .tags) }}"},
	{Name: "parentheses in parentheses", Template: "{{ len (print (len .name) (len .tags)) }}"},
	{Name: "a pipeline in parentheses", Template: "{{ print (.name | len) }}"},
	{Name: "a pipeline into a constant", Template: "{{ .name | 3 }}"},
	{Name: "a pipeline into a field", Template: "{{ 3 | .name }}"},
	{Name: "an empty pipeline", Template: "{{ }}"},
	{Name: "a pipeline that ends early", Template: "{{ .name | }}"},
	{Name: "a parenthesis left open", Template: "{{ (len .name }}"},
	{Name: "a parenthesis too many", Template: "{{ len .name) }}"},
	{Name: "an argument for a field", Template: "{{ .name 3 }}"},
	{Name: "an unknown function", Template: "{{ nosuch .name }}"},
	{Name: "no spaces around the pipe", Template: "{{.name|print}}"},
	{Name: "an action without end", Template: "{{ .name "},
	{Name: "a bad character", Template: "{{ .name ! }}"},
	{Name: "a string without end", Template: "{{ \"abc }}"},

	// Templates.
	{Name: "define and template", Template: "{{ define \"t\" }}<{{ .city }}>{{ end }}{{ template \"t\" .address }}"},
	{Name: "template without a value", Template: "{{ define \"t\" }}[{{ . }}]{{ end }}{{ template \"t\" }}"},
	{Name: "the dollar in a template", Template: "{{ define \"t\" }}{{ range .tags }}{{ $.name }}{{ . }}{{ end }}{{ end }}{{ template \"t\" . }}"},
	{Name: "variables stay outside", Template: "{{ $x := 1 }}{{ define \"t\" }}{{ $x }}{{ end }}{{ template \"t\" }}"},
	{Name: "block", Template: "{{ block \"b\" .address }}{{ .city }}{{ end }}"},
	{Name: "block called again", Template: "{{ block \"b\" . }}{{ .name }}{{ end }}+{{ template \"b\" . }}"},
	{Name: "a template that calls a later one", Template: "{{ define \"a\" }}({{ template \"b\" . }}){{ end }}{{ define \"b\" }}{{ . }}{{ end }}{{ template \"a\" .name }}"},
	{Name: "recursion", Template: "{{ define \"t\" }}{{ .v }}{{ with .next }},{{ template \"t\" . }}{{ end }}{{ end }}{{ template \"t\" . }}", Data: `{"v": 1, "next": {"v": 2, "next": {"v": 3}}}`},
	{Name: "recursion over a tree", Template: "{{ define \"t\" }}{{ .n }}{{ range .c }}({{ template \"t\" . }}){{ end }}{{ end }}{{ template \"t\" . }}", Data: `{"n": "a", "c": [{"n": "b", "c": [{"n": "c"}]}, {"n": "d"}]}`},
	{Name: "a template that is not defined", Template: "{{ template \"nosuch\" }}"},
	{Name: "a template defined twice", Template: "{{ define \"t\" }}a{{ end }}{{ define \"t\" }}b{{ end }}{{ template \"t\" }}"},
	{Name: "an empty definition gives way", Template: "{{ define \"t\" }} {{ end }}{{ define \"t\" }}b{{ end }}{{ template \"t\" }}"},
	{Name: "define inside a block", Template: "{{ if .a }}{{ define \"t\" }}x{{ end }}{{ end }}"},
	{Name: "a template's name without quotes", Template: "{{ template t }}"},
	{Name: "a template with a variable", Template: "{{ define \"t\" }}{{ . }}{{ end }}{{ range $k, $v := .scores }}{{ template \"t\" $k }}{{ end }}"},
	{Name: "break in a template in a loop", Template: "{{ define \"t\" }}{{ break }}{{ end }}{{ range .tags }}{{ template \"t\" }}{{ end }}"},

	// and, or, not.
	{Name: "and", Template: "{{ and 1 2 }} {{ and 0 2 }} {{ and .name .nick }}|{{ and true }}"},
	{Name: "or", Template: "{{ or 0 2 }} {{ or .nick .name }} {{ or 0 \"\" }}|"},
	{Name: "not", Template: "{{ not 0 }} {{ not .name }} {{ not .nothing }}"},
	{Name: "and stops early", Template: "{{ and .no (index .tags 99) }}"},
	{Name: "or stops early", Template: "{{ or .name (index .tags 99) }}"},
	{Name: "and from a pipeline", Template: "{{ .name | and 1 }}"},
	{Name: "and in if", Template: "{{ if and .admin (gt .age 40) (not .no) }}ok{{ end }}"},
	{Name: "or of nothing", Template: "[{{ or .nothing .boss }}]"},
	{Name: "not of two", Template: "{{ not 1 2 }}"},
	{Name: "and of none", Template: "{{ and }}"},

	// Comparison.
	{Name: "eq", Template: "{{ eq 1 1 }} {{ eq \"a\" \"b\" }} {{ eq true true }} {{ eq 1.5 1.5 }}"},
	{Name: "eq with several", Template: "{{ eq .name \"Bob\" \"Ann\" }} {{ eq 1 2 3 }}"},
	{Name: "ne", Template: "{{ ne 1 2 }} {{ ne .name \"Ann\" }}"},
	{Name: "lt le gt ge", Template: "{{ lt 1 2 }} {{ le 2 2 }} {{ gt 1 2 }} {{ ge 2 2 }}"},
	{Name: "compare strings", Template: "{{ lt \"a\" \"b\" }} {{ gt \"a\" \"B\" }} {{ le \"é\" \"z\" }}"},
	{Name: "compare floats", Template: "{{ lt .height 1.8 }} {{ ge .height 1.75 }}"},
	{Name: "compare data and constants", Template: "{{ gt .age 40 }} {{ lt .big 5 }}"},
	{Name: "eq of a string and a number", Template: "{{ eq .name 1 }}"},
	{Name: "eq of a boolean and a number", Template: "{{ eq .admin 1 }}"},
	{Name: "eq of lists", Template: "{{ eq .tags .tags }}"},
	{Name: "eq of mappings", Template: "{{ eq .address .address }}"},
	{Name: "eq of a list and a mapping", Template: "{{ eq .tags .address }}"},
	{Name: "eq of a list and a string", Template: "{{ eq .tags \"x\" }}"},
	{Name: "eq of null", Template: "{{ eq .boss nil }} {{ eq .nothing nil }} {{ eq .name nil }} {{ eq .tags nil }}"},
	{Name: "eq of null and null", Template: "{{ eq .boss .nothing }} {{ ne .boss nil }}"},
	{Name: "eq of one", Template: "{{ eq 1 }}"},
	{Name: "lt of booleans", Template: "{{ lt true false }}"},
	{Name: "lt of lists", Template: "{{ lt .tags .tags }}"},
	{Name: "lt of null", Template: "{{ lt .boss 1 }}"},
	{Name: "lt of a string and a number", Template: "{{ lt .name 1 }}"},
	{Name: "lt of three", Template: "{{ lt 1 2 3 }}"},
	{Name: "eq of an int and a float", Template: "{{ eq 1 1.0 }}"},
	{Name: "lt of an int and a float", Template: "{{ lt .age 41.5 }}"},

	// len, index, slice.
	{Name: "len", Template: "{{ len .name }} {{ len .tags }} {{ len .scores }} {{ len .none }} {{ len \"\" }}"},
	{Name: "len in bytes", Template: "{{ len .uni }}"},
	{Name: "len of a number", Template: "{{ len 3 }}"},
	{Name: "len of null", Template: "{{ len .boss }}"},
	{Name: "index of a list", Template: "{{ index .tags 1 }}"},
	{Name: "index of a mapping", Template: "{{ index .scores \"a\" }}{{ index .address \"geo\" \"lat\" }}"},
	{Name: "index of lists in lists", Template: "{{ index .nested 0 1 }}"},
	{Name: "index of a missing key", Template: "[{{ index .scores \"zz\" }}]"},
	{Name: "index without an index", Template: "{{ index .name }}"},
	{Name: "index beyond the end", Template: "{{ index .tags 3 }}"},
	{Name: "index far beyond the end", Template: "{{ index .tags 30 }}"},
	{Name: "index below zero", Template: "{{ index .tags -1 }}"},
	{Name: "index with a string", Template: "{{ index .tags \"1\" }}"},
	{Name: "index with a float", Template: "{{ index .tags 1.0 }}"},
	{Name: "index of a mapping with a number", Template: "{{ index .scores 1 }}"},
	{Name: "index of null", Template: "{{ index .boss 1 }}"},
	{Name: "index into null", Template: "{{ index . \"boss\" \"x\" }}"},
	{Name: "index of a string", Template: "{{ index .name 0 }}"},
	{Name: "index of a number", Template: "{{ index 5 0 }}"},
	{Name: "index by a variable", Template: "{{ $i := 2 }}{{ index .tags $i }}"},
	{Name: "slice of a list", Template: "{{ slice .tags 1 }} {{ slice .tags 0 2 }} {{ slice .tags }}"},
	{Name: "slice of a string", Template: "{{ slice .name 1 3 }}"},
	{Name: "slice backwards", Template: "{{ slice .tags 2 1 }}"},
	{Name: "slice beyond", Template: "{{ slice .name 0 9 }}"},
	{Name: "slice of a mapping", Template: "{{ slice .scores 0 }}"},
	{Name: "slice of a string with three", Template: "{{ slice .name 0 1 2 }}"},
	{Name: "slice with three", Template: "{{ slice .nested 0 1 2 }}"},

	// print, println.
	{Name: "print", Template: "{{ print 1 2 \"a\" \"b\" 3 4 true nil }}"},
	{Name: "print of a list", Template: "{{ print .tags .age .height }}"},
	{Name: "print of nothing", Template: "[{{ print }}]"},
	{Name: "print of a missing field", Template: "{{ print .nothing }}"},
	{Name: "println", Template: "{{ println 1 \"a\" 2 }}x"},
	{Name: "println of nothing", Template: "{{ println }}x"},

	// printf.
	{Name: "%v", Template: `{{ printf "%v %v %v %v %v" 1 "a" 1.5 true nil }}`},
	{Name: "%v of containers", Template: `{{ printf "%v %v" .tags .scores }}`},
	{Name: "%+v", Template: `{{ printf "%+v %+v" 3 .address }}`},
	{Name: "%d", Template: `{{ printf "%d|%5d|%-5d|%05d|%+d|%x|%X|%o|%b|%c|%08b" 42 42 42 42 42 255 255 8 5 65 5 }}`},
	{Name: "%d of negatives", Template: `{{ printf "%d|%05d|%x|%6d" -42 -42 -255 -1 }}`},
	{Name: "%d with precision", Template: `{{ printf "%.3d|%8.3d|%-8.3d|%08.3d|%.0d|" 7 7 7 7 0 }}`},
	{Name: "%s", Template: `{{ printf "%s|%6s|%-6s|%.2s|%6.2s|%06s" "abc" "abc" "abc" "abc" "abc" "abc" }}`},
	{Name: "%s in runes", Template: `{{ printf "%7s|%.2s" "héé" "héé" }}`},
	{Name: "%q", Template: `{{ printf "%q %q %9q" "a\"b\n" .uni "a" }}`},
	{Name: "%q of a list", Template: `{{ printf "%q" .tags }}`},
	{Name: "%x of a string", Template: `{{ printf "%x %X %6x %.1x" "hé" "hé" "ab" "abc" }}`},
	{Name: "%f", Template: `{{ printf "%f|%.2f|%8.2f|%-8.2f|%08.2f|%+.1f|%+08.1f|%.0f|%F" 1.5 1.005 3.14159 3.14159 -3.14159 2.25 2.25 2.5 1.25 }}`},
	{Name: "%e", Template: `{{ printf "%e|%.2e|%E|%12.3e" 1234.5678 1234.5678 0.00012 1e100 }}`},
	{Name: "%g", Template: `{{ printf "%g|%g|%g|%.3g|%.3g|%G|%.10g|%g" 100000.0 1000000.0 0.00001 1234.5678 0.00012345 1e-10 1.5 1e21 }}`},
	{Name: "%g with zeros", Template: `{{ printf "%.3g|%.3g|%.1g|%.5g|%g|%g" 100.0 1000.0 15.0 0.0 0.0 -0.5 }}`},
	{Name: "%t", Template: `{{ printf "%t|%6t|%v" true false true }}`},
	{Name: "%%", Template: `{{ printf "100%%" }}`},
	{Name: "%v with widths", Template: `{{ printf "%6v|%-6v|%06v|%6v|%6v" 42 42 42 "ab" nil }}`},
	{Name: "%v of a list with a width", Template: `{{ printf "%3v|%03d" .nested .nested }}`},
	{Name: "a wrong verb", Template: `{{ printf "%d %s %t %f %z" "a" 1 1 2 3 }}`},
	{Name: "a wrong verb of nil", Template: `{{ printf "%d %s" nil nil }}`},
	{Name: "a wrong verb in a list", Template: `{{ printf "%d" .mixed }}`},
	{Name: "a verb for each of a mapping", Template: `{{ printf "%d" .scores }}`},
	{Name: "too few arguments", Template: `{{ printf "%d %d" 1 }}`},
	{Name: "too many arguments", Template: `{{ printf "%d" 1 "b" nil 2.5 }}`},
	{Name: "no verb", Template: `{{ printf "50%" }}`},
	{Name: "no verb after flags", Template: `{{ printf "50%-5" 1 }}`},
	{Name: "a format that is a number", Template: `{{ printf 5 }}`},
	{Name: "a format that is null", Template: `{{ printf .boss }}`},
	{Name: "%d of a float", Template: `{{ printf "%d" 1.5 }}`},
	{Name: "%f of an int", Template: `{{ printf "%.1f" .age }}`},
	{Name: "%c beyond", Template: `{{ printf "%c|%c|%c" 128512 -1 55296 }}`},
	{Name: "%s of a list", Template: `{{ printf "%s" .tags }}`},
	{Name: "%5.1f%% in text", Template: `{{ printf "cpu %5.1f%% of %d" 12.345 4 }}`},
	{Name: "two flags", Template: `{{ printf "%+05d|%-+5d|%-05d|%+.2e" 7 7 7 12345.678 }}`},

	// Escapers.
	{Name: "html", Template: "{{ html .html }}"},
	{Name: "html from a pipeline", Template: "{{ .html | html }}"},
	{Name: "html of values", Template: "{{ html 1 \"<\" .boss .tags }}"},
	{Name: "js", Template: "{{ js .html }} {{ js .uni }} {{ js \"a\\nb\\\\=\" }}"},
	{Name: "urlquery", Template: "{{ urlquery .html }} {{ urlquery .uni \"a b&c=d/~-._\" }}"},
	{Name: "call of no function", Template: "{{ call .name }}"},
	{Name: "call of null", Template: "{{ call .boss }}"},

	// What is added to Go's own.
	{Name: "default", Template: "{{ default \"x\" .nick }} {{ default \"x\" .name }} {{ .nothing | default \"y\" }} {{ default 5 .zero }}"},
	{Name: "join", Template: "{{ join \", \" .tags }}|{{ join \"-\" .mixed }}|{{ join \",\" .none }}|{{ join \",\" .boss }}"},
	{Name: "join from a pipeline", Template: "{{ .tags | join \"+\" }}"},
	{Name: "upper lower trim", Template: "{{ upper .uni }} {{ lower .name }} [{{ trim .text }}]"},
	{Name: "upper of a number", Template: "{{ upper .age }}"},
	{Name: "lower of null", Template: "{{ lower .boss }}"},
	{Name: "toJson", Template: "{{ toJson .mixed }} {{ toJson .scores }} {{ toJson .html }} {{ toJson .boss }}"},
	{Name: "toJson of a float", Template: "{{ toJson .height }} {{ toJson .big }}"},
	{Name: "upper of two", Template: "{{ upper \"a\" \"b\" }}"},

	// Whole templates as people write them.
	{Name: "a list of people", Template: "Found {{ len .items }} items:\n{{ range $i, $x := .items }}{{ if $i }}\n{{ end }}{{ $x.id }}. {{ $x.name | upper }}{{ if $x.parts }} ({{ join \", \" $x.parts }}){{ end }}{{ end }}\n"},
	{Name: "a table", Template: "{{ range .items }}{{ printf \"%-6s|%4d\\n\" .name .id }}{{ end }}"},
	{Name: "a comma list", Template: "{{ range $i, $t := .tags }}{{ if gt $i 0 }}, {{ end }}{{ $t }}{{ end }}"},
	{Name: "first match", Template: "{{ $found := \"\" }}{{ range .items }}{{ if eq .id 2 }}{{ $found = .name }}{{ break }}{{ end }}{{ end }}{{ $found }}"},
}

func decode(text string) any {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		panic(fmt.Sprintf("%s: %v", text, err))
	}
	return numbers(value)
}

func numbers(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key, each := range value {
			value[key] = numbers(each)
		}
	case []any:
		for index, each := range value {
			value[index] = numbers(each)
		}
	case json.Number:
		if whole, err := value.Int64(); err == nil {
			return int(whole)
		}
		float, err := value.Float64()
		if err != nil {
			panic(err)
		}
		return float
	}
	return value
}

func isEmpty(value any) bool {
	truth, _ := template.IsTrue(value)
	return !truth
}

var functions = template.FuncMap{
	"default": func(fallback any, value ...any) any {
		if len(value) == 0 || isEmpty(value[0]) {
			return fallback
		}
		return value[0]
	},
	"join": func(separator string, items any) string {
		if items == nil {
			return ""
		}
		list := reflect.ValueOf(items)
		if list.Kind() != reflect.Slice {
			return fmt.Sprint(items)
		}
		var parts []string
		for index := range list.Len() {
			if item := list.Index(index).Interface(); item != nil {
				parts = append(parts, fmt.Sprint(item))
			}
		}
		return strings.Join(parts, separator)
	},
	"upper": strings.ToUpper,
	"lower": strings.ToLower,
	"trim":  strings.TrimSpace,
	"toJson": func(value any) (string, error) {
		var out bytes.Buffer
		encoder := json.NewEncoder(&out)
		encoder.SetEscapeHTML(false)
		err := encoder.Encode(value)
		return strings.TrimSuffix(out.String(), "\n"), err
	},
}

func main() {
	for index := range cases {
		one := &cases[index]
		data := one.Data
		if data == "" {
			data = person
		}
		parsed, err := template.New("response").Funcs(functions).Parse(one.Template)
		if err != nil {
			one.Failed, one.Error = "parse", err.Error()
			continue
		}
		var out bytes.Buffer
		if err := parsed.Execute(&out, decode(data)); err != nil {
			one.Failed, one.Error = "run", err.Error()
			continue
		}
		one.Output = out.String()
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	table := map[string]any{"go": runtime.Version(), "person": person, "cases": cases}
	if err := encoder.Encode(table); err != nil {
		panic(err)
	}
}
