/* Browsers start no worker from a file:// address. There, the search's worker runs in a hidden frame instead. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.__answer = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      inside.document.open();
      inside.document.write(
        "<script>" +
          "postMessage = (data) => setTimeout(() => __answer(data));" +
          "importScripts = (...urls) => Promise.all(urls.map((url) => new Promise((resolve, reject) => {" +
          "  const script = document.createElement('script');" +
          "  script.src = url; script.onload = resolve; script.onerror = reject; document.head.append(script);" +
          "})));" +
          "</" + "script>" +
          `<script src="${url}"></` + "script>"
      );
      inside.document.close();
      this.loaded = new Promise((resolve) => inside.addEventListener("load", resolve));
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.loaded.then(() => inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
