// Arithmatex leaves \(...\) and \[...\] in elements of this class.
document.querySelectorAll(".arithmatex").forEach((element) => {
  const source = element.textContent.trim();
  katex.render(source.slice(2, -2), element, { displayMode: source.startsWith("\\["), throwOnError: true });
});
