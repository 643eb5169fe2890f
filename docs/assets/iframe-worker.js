// The search of the site runs in a Worker, which browsers refuse to pages opened from a folder. There, the worker's script
// runs in a hidden frame of the page instead. `IFrameWorker` is the name by which the script asks whether it does.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const room = frame.contentWindow;
      room.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.loaded = new Promise((resolve) => {
        const script = frame.contentDocument.createElement("script");
        script.src = url;
        script.onload = () => resolve(room);
        frame.contentDocument.body.append(script);
      });
    }

    postMessage(data) {
      this.loaded.then((room) => room.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
  window.Worker = window.IFrameWorker;
}
