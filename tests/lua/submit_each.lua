-- Reads values of one field of a submission from stdin, one a line in hexadecimal. For each it
-- prints slicewise.lua's answer without a daemon (a code) and, after a blank, the question that it
-- asked (JSON, or nothing).
local module_path, field = arg[1], arg[2]
local sent

package.loaded["socket.unix"] = {
    stream = function()
        return {
            settimeout = function() end,
            connect = function() return 1 end,
            send = function(_, line) sent = line return #line end,
            receive = function() return nil, "timeout" end,
            close = function() end,
        }
    end,
}
slurm = { SUCCESS = 0, log_info = function() end, log_user = function() end }

local module = dofile(module_path)
module.configure({})
io.stdout:setvbuf("line")
for line in io.lines() do
    sent = "\n"
    local value = line:gsub("..", function(pair) return string.char(tonumber(pair, 16)) end)
    local code = module.job_submit({ [field] = value }, {}, 1000)
    io.write(code, " ", sent)
end
