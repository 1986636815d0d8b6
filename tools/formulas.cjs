// LaTeX in (a list of {latex, display} on standard input), HTML and plain characters out; a bad formula ends it
const katex = require(require("path").resolve(process.argv[2]));
const asked = JSON.parse(require("fs").readFileSync(0, "utf8"));

function set({ latex, display }) {
  try {
    const options = { displayMode: display, throwOnError: true, strict: "error" };
    const html = katex.renderToString(latex, { ...options, output: "htmlAndMathml" });
    const math = katex.renderToString(latex, { ...options, output: "mathml" });
    const text = math.replace(/<annotation[^]*?<\/annotation>/g, "").replace(/<[^>]*>/g, "");
    return { html, text };
  } catch (error) {
    process.stderr.write(`${latex}: ${error.message}\n`);
    process.exit(1);
  }
}

process.stdout.write(JSON.stringify(asked.map(set)));
